"""The algebra: errors, slots, pipes and what performs their calls. It knows no model and no
engine.
"""
