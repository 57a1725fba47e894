"""The process: tasks, files, helper processes, and names of other packages."""
