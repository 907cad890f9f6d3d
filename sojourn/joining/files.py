"""What a node keeps of its own keys, in one folder that only it can read.

node.key      its Ed25519 key: who it is to the fleet, and what it signs results with; made once
node.pem      the certificate that the broker lets it in with, and its private key, in one file: renewed in one step
ca.pem        the authorities of the fleet
next.key      the private key of a certificate that was asked for and is not here yet
joined.json   where the door is, and the stamps of the last visit there
"""

NODE_KEY, CERTIFICATE, AUTHORITIES, NEXT_KEY, JOINED = "node.key", "node.pem", "ca.pem", "next.key", "joined.json"
