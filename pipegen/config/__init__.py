"""Files that say what to do: generation options, and the models of a chat. JSON or YAML, checked
strictly.
"""

from pipegen.config.chat_file import Agent, ChatConfig, ChatUi, chat_from, read_chat
from pipegen.config.config_files import MAX_FILE_BYTES, Place
from pipegen.config.engine_choice import BackendConfig, backend_from
from pipegen.config.generation import read_options
from pipegen.config.schema import lines_schema, schema
from pipegen.records.secret import Secret

__all__ = [
    "MAX_FILE_BYTES",
    "Agent",
    "BackendConfig",
    "ChatConfig",
    "ChatUi",
    "Place",
    "Secret",
    "backend_from",
    "chat_from",
    "lines_schema",
    "read_chat",
    "read_options",
    "schema",
]
