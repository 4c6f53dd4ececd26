"""What a server can rebuild of a client's data from the part of an update that it sees in the clear."""
