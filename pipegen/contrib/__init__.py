"""pipegen in the place of other libraries' parts: the same signature and the same results, on more
engines.
"""
