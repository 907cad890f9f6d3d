"""What a node keeps: its journal, its blobs and how they are exchanged, and files written in one step."""
