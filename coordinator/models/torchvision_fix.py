"""Import this module before torchvision or timm, so that both can be imported next to any torch.

It is for custom programs. When Sojourn imports the module of a custom model or loss, it has already done this.
"""

from coordinator.models.torchvision_models import make_torchvision_importable

make_torchvision_importable()
