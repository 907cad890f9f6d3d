"""What can go wrong, and whose fault it is.

SojournError
├── UserError          what a person wrote or gave us: config, job file, data, model
│   ├── ConfigError      a config or job file that does not say what it should
│   ├── DataError        data that cannot be read or does not fit the job
│   ├── ModelError       a model that cannot be compiled, or compiles to something else
│   │   └── GraphRefused   a graph that is not run here, whoever sent it
│   ├── JobError         a job that cannot be done, or is unknown
│   └── NoRelease        a model line of which this machine serves no release
├── PeerError          what another node sent us
│   ├── InvalidMessage   not a message, too large, of the wrong type, from the wrong role
│   └── InvalidBlob      bytes that do not match their digest or their encoding
├── MachineError       what this machine or its network lacks
│   ├── LinkError        the broker cannot be reached, or it refuses us
│   ├── BrokerError      a broker could not be started here
│   └── StoreError       the store cannot be read or written
│       ├── DiskFull       there is no room left
│       ├── DamagedJournal  what was written is not what is read back
│       └── MissingBlob    a blob that the journal refers to is gone
└── Fault              our own mistake: please report it
    └── UnexpectedEvent  something happened in a state whose table does not know it
"""


class SojournError(Exception):
    """The root: every error that Sojourn raises on purpose."""


class UserError(SojournError):
    """What a person wrote or gave us."""


class ConfigError(UserError):
    """A config or job file that does not say what it should."""


class DataError(UserError):
    """Data that cannot be read, or does not fit the job."""


class ModelError(UserError):
    """A model that cannot be compiled, or compiles to something else."""


class GraphRefused(ModelError):
    """A graph, or the kit around it, that is not run here: it breaks a rule of `sojourn.model.inspection`."""


class JobError(UserError):
    """A job that cannot be done, or is unknown."""


class NoRelease(UserError):
    """A model line of which this machine serves no release."""


class PeerError(SojournError):
    """What another node sent us."""


class InvalidMessage(PeerError):
    """Not a message, too large, of the wrong type, or from the wrong role."""


class InvalidBlob(PeerError):
    """Bytes that do not match their digest or their encoding."""


class MachineError(SojournError):
    """What this machine or its network lacks."""


class LinkError(MachineError):
    """The broker cannot be reached, or it refuses us."""


class BrokerError(MachineError):
    """A broker could not be started here."""


class StoreError(MachineError):
    """The store cannot be read or written."""


class DiskFull(StoreError):
    """There is no room left on the disk."""


class DamagedJournal(StoreError):
    """What was written to the journal is not what is read back."""


class MissingBlob(StoreError, KeyError):
    """A blob that the journal refers to is gone."""

    __str__ = Exception.__str__


class Fault(SojournError):
    """Our own mistake: please report it."""


class UnexpectedEvent(Fault):
    """Something happened in a state whose table does not know it."""
