"""What operators may ask of a cluster: `service` has one method per call, and the others are its parts."""
