"""One file per library of tasks: its app, with a task that does nothing, and its client; its workers import it too."""
