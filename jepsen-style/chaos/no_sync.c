/* A disk that lies: says that it has synced and has not. Preloaded into brokers to show that a power cut finds it. */

int fsync(int fd) {
    (void)fd;
    return 0;
}

int fdatasync(int fd) {
    (void)fd;
    return 0;
}
