"""The tables and curves of Guha and Smith, Model Aggregation via Good-Enough Model Spaces."""
