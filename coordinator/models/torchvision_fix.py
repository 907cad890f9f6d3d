"""`import coordinator.models.torchvision_fix`, before torchvision or timm: both can then be imported next to any torch.

For a program of your own. Where Sojourn imports the module with your model or loss, it has done this before.
"""

from coordinator.models.torchvision_import import make_torchvision_importable

make_torchvision_importable()
