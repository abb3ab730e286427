"""Backups of a cluster or a node: what they consist of, where they are kept, and how they are made.

errors.py      what can go wrong, with what to do about it
manifest.py    the statement of what one backup contains (pure)
targets.py     places for backups: the seam, and a directory
s3.py          the same in S3-compatible storage (the only file that knows its library)
encryption.py  files that only the holder of a key can read or change (the only file that knows cryptography)
store.py       files by their content and manifests by their ids, in any target
creating.py    makes one, of shards that go on working
checking.py    looks at one, and says what is wrong with it
pruning.py     deletes old ones, and the files that nobody needs any more
restoring.py   makes a cluster or a data directory of one

    <target>/
        files/<first two digits>/<digest>     a file of a state, once, however many backups have it
        backups/<id>.json                     a manifest; written last: without it there is no backup
        running/<what>-<id>.json              who is at work, so that nothing is deleted that is needed
"""
