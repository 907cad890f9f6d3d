"""Data sets from local files or generated, and their split over devices; nothing is ever downloaded."""

from fleet_sim.datasets.data_set import DataSet
from fleet_sim.datasets.loading import FOLDER, NAMES, load

__all__ = ["FOLDER", "NAMES", "DataSet", "load"]
