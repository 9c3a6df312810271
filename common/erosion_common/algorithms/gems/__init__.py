"""Good-enough model spaces (Guha and Smith, Model Aggregation via Good-Enough Model Spaces, 2019).

Each hospital says which models around its own optimum are good enough for it: a ball. The
coordinator looks for a model in all balls. Everything here is a pure function of tensors.
"""
