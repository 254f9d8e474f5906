"""What travels: requests, messages, options and results, how they are checked, and their plain-data
form.
"""
