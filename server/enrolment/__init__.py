"""The federation's certificate authority, its enrolled keys, and whom the coordinator lets in."""
