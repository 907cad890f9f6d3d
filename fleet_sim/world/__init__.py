"""The fleet that is not there: every node on a virtual clock, when devices come and go, and how long visits take."""
