"""What should move, as a plan that is kept in etcd, and how far its steps are: it follows from the map alone. Pure."""
