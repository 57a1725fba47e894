"""Images and audio of prompts."""
