"""The demo vision model: its pictures, its chats and its training."""
