# The user and the runtime directory. No unit is enabled or started: an instance needs its file /etc/headworks/NAME.toml.
systemd-sysusers headworks.conf || :
if [ -d /run/systemd/system ]; then
    systemd-tmpfiles --create headworks.conf || :
    systemctl --system daemon-reload || :
fi
