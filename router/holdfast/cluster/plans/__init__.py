"""What should move, as a plan that is kept in etcd (`plans`), and how far its steps are (`steps`): that follows from
the map alone. Pure.
"""
