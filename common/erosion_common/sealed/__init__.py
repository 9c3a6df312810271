"""Sealed rounds: nobody sees a single update.

`phases` says who is in a round and what each phase asks and answers; `masks` hide updates,
`distance` compares them, `rounds` is the coordinator's part, and `audit` finds out who lied.
"""
