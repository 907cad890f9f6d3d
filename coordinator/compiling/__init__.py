"""From a torch module to graphs that train and predict without torch."""

from coordinator.compiling.baking import bake
from coordinator.compiling.kits import Compiled, compile_kit

__all__ = ["Compiled", "bake", "compile_kit"]
