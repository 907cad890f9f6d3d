"""One look at the door, as a process of its own: `python -m edge_agent.joining.renewing FOLDER`.

What it needs of the cryptography library does not stay in the agent's memory. It prints what came of it as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from edge_agent.joining.join import about_this_machine
from edge_agent.joining.looked import DAY, HOUR, MINUTE, Looked
from sojourn.errors import SojournError
from sojourn.joining import asking
from sojourn.joining.identity import NodeIdentity


def look(identity: NodeIdentity) -> Looked:
    """See whether the certificate is good, and have it renewed if that is due, or ask to come back if it has ended."""
    try:
        valid = asking.check(identity)
        if not valid.due:
            return Looked(min(max(valid.again, MINUTE), DAY))
        asking.renew(identity)
        return Looked(MINUTE, "the certificate was renewed")
    except asking.CertificateRefused:
        return _come_back(identity)
    except asking.TurnedAway as error:
        return Looked(DAY if error.final else HOUR, f"the door says: {error}", warn=True)
    except (SojournError, OSError) as error:  # a file of ours may be gone, too
        return Looked(HOUR, str(error), warn=True)


def _come_back(identity: NodeIdentity) -> Looked:
    try:
        waiting = asking.come_back(identity, about_this_machine())
    except asking.TurnedAway as error:
        return Looked(DAY if error.final else HOUR, f"the door says: {error}", warn=True)
    except (SojournError, OSError) as error:  # a file of ours may be gone, too
        return Looked(HOUR, str(error), warn=True)
    if waiting is None:
        return Looked(MINUTE, "let in again, with a new certificate")
    text = f"the certificate has ended: waiting for `sojourn fleet accept {waiting.name}`"
    return Looked(max(waiting.again, MINUTE), text, warn=True)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(look(NodeIdentity(Path(sys.argv[1])))))
