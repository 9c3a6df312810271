"""Shared by both sides: studies, algorithms, models, local training and the wire format."""

import os

# gRPC takes part in every fork of its process unless set otherwise before its first use, and a
# child may crash. The simulator's forked processes use no gRPC; no other program forks.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
