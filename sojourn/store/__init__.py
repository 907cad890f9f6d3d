"""What a node keeps: its journal, its blobs, and files written in one step."""
