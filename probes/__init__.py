"""Probes of a model: where each head attends, how widely, and what breaks without it.

Its public names are in __init__.pyi and are loaded on first use: `import probes` imports no
torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
