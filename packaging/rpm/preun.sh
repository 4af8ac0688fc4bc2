# $1 is how many versions stay: 0 when the package goes. Each instance writes out what is dirty. An upgrade stops nothing.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl stop 'headworks@*.socket' 'headworks-control@*.socket' 'headworks@*.service' || :
fi
