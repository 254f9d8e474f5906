"""The vLLM engine, in this process. vLLM is imported when the engine starts, or when an argument
has to be looked up; not before.
"""
