"""The manifests of deploy/k8s: rendered by `kubectl kustomize`, and checked for what no schema knows.

rendering.py   runs kubectl, writes and compares the rendered files
objects.py     manifests as Python objects: workloads, containers, what they refer to
rules.py       what must hold between them; each rule yields findings
__main__.py    `python -m tools.manifests render | verify | lint FILE`
"""
