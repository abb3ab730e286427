"""What servers and the light client share: how to run in the background and on which event loop, how to back off, how
certificates are read and noticed to change, how connections with TLS are read and written, names in the metadata of
calls. The standard library only, and uvloop where there is one."""
