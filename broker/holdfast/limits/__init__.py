"""The arithmetic of limits, pure like the machine: token buckets (`buckets`), a queue's budget dealt to its shards
(`dealing`), and equal parts of limits that nobody deals (`splitting`).
"""
