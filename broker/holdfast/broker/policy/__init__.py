"""What queues do in their own way (`policies`), and what a task is to be under them (`task_specs`)."""
