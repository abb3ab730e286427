"""One file per broker: its servers and its client. They are imported only where they are measured."""
