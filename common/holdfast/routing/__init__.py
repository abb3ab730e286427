"""Where a call goes: pure rules that routers, brokers and clients share."""
