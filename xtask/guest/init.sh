#!/bin/busybox sh
# The first process of the guest: attaches the export that the kernel's command line names (oleo.port), does the job
# (oleo.job), and ends. What the test reads stands in lines that begin with OLEO.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /m/*.ko; do insmod "$m" 2>/dev/null; done
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
arg() { sed -n "s/.*oleo.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
say() { echo "OLEO $*"; }
end() { say "end $1"; poweroff -f; sleep 100; }
fail() { say "failed $*"; dmesg | tail -n 20; end 1; }

nbd-client 10.0.2.2 "$(arg port)" /dev/nbd0 -C 4 -t 30 -p >/tmp/client 2>&1 || { cat /tmp/client; fail nbd-client; }
say "attached $(cat /sys/block/nbd0/size) $(uname -r)"
mount -t btrfs /dev/nbd0 /mnt || fail mount
say mounted
sums() { (cd /mnt && find . -type f -print0 | sort -z | xargs -0 -r sha256sum) | sed 's/^/OLEO sum /'; }
case "$(arg job)" in
read)
    sums
    ;;
write)
    btrfs subvolume create /mnt/v >/dev/null || fail subvolume
    i=0
    while [ $i -lt 200 ]; do
        mkdir -p /mnt/v/d$((i % 7))
        yes "line $i" | head -n $((i * 50)) >/mnt/v/d$((i % 7))/f$i || fail write
        i=$((i + 1))
    done
    dd if=/dev/urandom of=/mnt/random bs=1M count=24 2>/dev/null || fail dd
    btrfs subvolume snapshot -r /mnt/v /mnt/s >/dev/null || fail snapshot
    rm -r /mnt/v/d3
    sums
    fstrim /mnt || fail fstrim
    ;;
killed)
    i=0
    while true; do
        # With fsync before it ends.
        yes "confirmed $i" | head -n 300 | dd of=/mnt/k$i conv=fsync 2>/dev/null || fail write
        say "confirmed k$i"
        i=$((i + 1))
    done
    ;;
esac
sync
btrfs scrub start -B /mnt >/tmp/scrub 2>&1 || { cat /tmp/scrub; fail scrub; }
grep -q "no errors found" /tmp/scrub || { cat /tmp/scrub; fail scrub; }
umount /mnt || fail umount
nbd-client -d /dev/nbd0 >/dev/null
dmesg | grep -i "i/o error\|btrfs.*error\|btrfs.*corrupt\|nbd.*fail" && fail "the kernel's log"
end 0
