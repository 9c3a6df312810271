"""The federation's certificate authority, its enrolled keys, and admission to the coordinator."""
