"""Models that can be looked into, and what it takes to train them.

Its public names stand in __init__.pyi and are loaded on first use: `import lab` imports no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
