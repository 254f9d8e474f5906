"""Work that outlives a process: what is finished is on disk, and the same job goes on where it
stopped.
"""
