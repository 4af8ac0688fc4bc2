# Directories are no files of the package, so they stay behind unless they are removed here.
if [ "$1" -eq 0 ]; then
    rmdir /usr/share/doc/headworks /usr/share/licenses/headworks 2>/dev/null || :
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload || :
fi
