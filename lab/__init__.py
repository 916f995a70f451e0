"""Hooked GPT models, and the code that trains, saves and runs them.

Its public names are listed in __init__.pyi and loaded on first use: `import lab` imports no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
