"""Sealed rounds: nobody sees a single update.

Here is what everybody agrees on: who is in a round, and what each leg says. `masks` hide updates,
`distances` compare them, `sums` says which may be made, `rounds` is the coordinator's part, and
`audit` finds out who lied.
"""
