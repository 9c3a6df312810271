"""The coordinator's side of sealed rounds that a person uses; the rounds are in `common.sealed`."""
