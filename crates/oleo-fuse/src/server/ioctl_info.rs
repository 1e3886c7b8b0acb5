//! The ioctls of btrfs that only return information.

use oleo::TreeId;
use oleo::fs::{FileKind, Ino};
use oleo_format::{ItemType, Key};
use oleo_fs::{FsError, SubvolInfo as Info, Time};
use zerocopy::IntoBytes;

use super::Errno;
use super::ioctl_btrfs::{Answered, Call, take};
use super::ioctl_numbers::*;

/// `EOVERFLOW`, as a return value that comes with data.
const OVERFLOW: i32 = -oleo_fs::errno::EOVERFLOW;
/// Directories from anything up to its subvolume's root, at most: as deep as a path can be.
const DEPTH_MAX: usize = 4096;
/// `BTRFS_FS_INFO_FLAG_*`: checksum, generation and metadata UUID are returned.
const ALL_INFO: u64 = 0b111;
/// `BTRFS_ROOT_SUBVOL_RDONLY`.
const ROOT_RDONLY: u64 = 1;
/// What may be read, and searched: for looking up names in directories.
const READ_SEARCH: u32 = 5;

impl Call<'_> {
    pub(super) fn answer_info(&self, cmd: u32) -> Result<Answered, Errno> {
        let fs = self.server.image().fs();
        match cmd {
            SUBVOL_GETFLAGS => {
                self.must_be_subvol()?;
                let flags = if self.inode.subvol().is_read_only() { SUBVOL_RDONLY } else { 0 };
                Ok(flags.as_bytes().to_vec().into())
            }
            GET_FSLABEL => {
                let mut label = self.server.image().label();
                label.resize(LABEL_LEN, 0);
                Ok(label.into())
            }
            GETVERSION => Ok(fs.attr(self.inode).generation.as_bytes().to_vec().into()),
            GET_FEATURES => {
                let f = fs.engine().features();
                Ok([f.compat, f.compat_ro.bits(), f.incompat.bits()].as_bytes().to_vec().into())
            }
            FS_INFO => Ok(self.fs_info().as_bytes().to_vec().into()),
            DEV_INFO => self.dev_info(),
            GET_SUBVOL_INFO => Ok(self.subvol_info()?.as_bytes().to_vec().into()),
            GET_SUBVOL_ROOTREF => self.subvols_inside(take(self.data, 0)?),
            INO_LOOKUP => self.ino_lookup(),
            INO_LOOKUP_USER => self.ino_lookup_user(),
            TREE_SEARCH => self.tree_search(),
            _ => self.answer_devices(cmd),
        }
    }

    pub(super) fn must_be_privileged(&self) -> Result<(), Errno> {
        if self.caller().privileged { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn fs_info(&self) -> FsInfo {
        let image = self.server.image();
        let (engine, volume) = (image.fs().engine(), image.volume());
        let sb = engine.super_block();
        let devices = volume.devices();
        let csum = engine.csum_type();
        FsInfo {
            max_id: devices.iter().map(|d| d.devid.0).max().unwrap_or(0),
            num_devices: devices.len() as u64,
            fsid: sb.fsid().into_bytes(),
            nodesize: engine.nodesize(),
            sectorsize: engine.sectorsize(),
            clone_alignment: engine.sectorsize(),
            csum_type: sb.csum_type.get(),
            csum_size: csum.csum_len() as u16,
            flags: ALL_INFO,
            generation: sb.generation.get(),
            metadata_uuid: volume.rules().fsid.into_bytes(),
            reserved: [0; 944],
        }
    }

    fn dev_info(&self) -> Result<Answered, Errno> {
        self.must_be_privileged()?;
        let asked: DevInfo = take(self.data, 0)?;
        let image = self.server.image();
        let same = |d: &oleo::device::DeviceInfo| {
            (asked.devid == 0 || d.devid.0 == asked.devid)
                && (asked.uuid == [0; 16] || d.uuid.as_bytes() == &asked.uuid)
        };
        let devices = image.volume().devices();
        let device = devices.iter().find(|d| same(d)).ok_or(Errno(oleo_fs::errno::ENODEV))?;
        let head = DevInfo {
            devid: device.devid.0,
            uuid: device.uuid.into_bytes(),
            bytes_used: device.used.0,
            total_bytes: device.total.0,
            fsid: image.fs().engine().super_block().fsid().into_bytes(),
            unused: [0; 377],
        };
        let mut path = device.name.clone().into_bytes();
        path.truncate(DEVICE_PATH_LEN - 1);
        path.resize(DEVICE_PATH_LEN, 0);
        Ok([head.as_bytes(), &path].concat().into())
    }

    fn subvol_info(&self) -> Result<SubvolInfo, Errno> {
        let info: Info = self.server.image().fs().subvol_info(self.inode.tree())?;
        let time = |t: Time| Timespec { sec: t.sec.try_into().unwrap_or(0), nsec: t.nsec, padding: 0 };
        let mut name = [0; 256];
        if let Some(place) = &info.place {
            name.iter_mut().zip(&place.name).for_each(|(to, from)| *to = *from);
        }
        Ok(SubvolInfo {
            treeid: info.id.0,
            name,
            parent_id: info.parent.map_or(0, |id| id.0),
            dirid: info.place.as_ref().map_or(0, |place| place.dirid.0),
            generation: info.generation,
            flags: if info.read_only { ROOT_RDONLY } else { 0 },
            uuid: info.uuid.into_bytes(),
            parent_uuid: info.parent_uuid.into_bytes(),
            received_uuid: info.received_uuid.into_bytes(),
            ctransid: info.ctransid,
            otransid: info.otransid,
            stransid: info.stransid,
            rtransid: info.rtransid,
            ctime: time(info.ctime),
            otime: time(info.otime),
            stime: time(info.stime),
            rtime: time(info.rtime),
            reserved: [0; 8],
        })
    }

    /// The subvolumes directly inside this one, from a number on.
    fn subvols_inside(&self, from: u64) -> Result<Answered, Errno> {
        let list = self.server.image().fs().subvol_list()?;
        let inside: Vec<[u64; 2]> = list
            .iter()
            .filter(|info| info.parent == Some(self.inode.tree()) && info.id.0 >= from)
            .map(|info| [info.id.0, info.place.as_ref().map_or(0, |place| place.dirid.0)])
            .collect();
        let reported = &inside[..inside.len().min(ROOTREFS_MAX)];
        let more = inside.get(ROOTREFS_MAX).is_some();
        let next = if more { reported.last().map_or(from, |last| last[0] + 1) } else { from };
        let mut bytes = next.as_bytes().to_vec();
        bytes.extend_from_slice(reported.as_bytes());
        bytes.resize(size_of::<VolArgs>() - 8, 0);
        // At most 255.
        bytes.push(reported.len() as u8);
        bytes.resize(size_of::<VolArgs>(), 0);
        Ok(Answered { result: if more { OVERFLOW } else { 0 }, bytes })
    }

    /// The path from a directory down to an inode of the same subvolume, each name followed by a slash. `allowed`
    /// checks the directories on it.
    fn way_down(
        &self,
        tree: TreeId,
        top: Ino,
        to: Ino,
        allowed: &dyn Fn(&oleo_fs::InodeRef) -> Result<(), Errno>,
    ) -> Result<Vec<u8>, Errno> {
        let fs = self.server.image().fs();
        let subvol = fs.subvol(tree)?;
        let mut parts = Vec::new();
        let mut at = to;
        for _ in 0..DEPTH_MAX {
            if at == top {
                parts.reverse();
                return Ok(parts.concat());
            }
            if at == Ino::ROOT_DIR {
                return Err(Errno::EACCES);
            }
            let inode = fs.inode(&subvol, at)?;
            allowed(&inode)?;
            let name = fs.names(&inode)?.into_iter().next().ok_or(Errno::ENOENT)?;
            at = name.parent;
            parts.push([&name.name[..], b"/"].concat());
        }
        Err(Errno(oleo_fs::errno::ELOOP))
    }

    fn ino_lookup(&self) -> Result<Answered, Errno> {
        let [tree, ino] = take::<[u64; 2]>(self.data, 0)?;
        let tree = if tree == 0 { self.inode.tree() } else { TreeId(tree) };
        let mut path = Vec::new();
        if Ino(ino) != Ino::ROOT_DIR {
            self.must_be_privileged()?;
            path = self.way_down(tree, Ino::ROOT_DIR, Ino(ino), &|_| Ok(()))?;
        } else if tree != self.inode.tree() {
            self.must_be_privileged()?;
            self.server.image().fs().subvol(tree)?;
        }
        if path.len() >= LOOKUP_PATH_LEN {
            return Err(Errno(oleo_fs::errno::ENAMETOOLONG));
        }
        path.resize(LOOKUP_PATH_LEN, 0);
        Ok([[tree.0, ino].as_bytes(), &path].concat().into())
    }

    fn ino_lookup_user(&self) -> Result<Answered, Errno> {
        let [dirid, treeid] = take::<[u64; 2]>(self.data, 0)?;
        if self.kind() != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let fs = self.server.image().fs();
        let info = fs.subvol_info(TreeId(treeid))?;
        let place = info.place.filter(|place| info.parent == Some(self.inode.tree()) && place.dirid == Ino(dirid));
        let mut name = place.ok_or(Errno::ENOENT)?.name;
        let caller = self.caller();
        let allowed = |dir: &oleo_fs::InodeRef| match caller.may(fs, dir, READ_SEARCH) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno::EACCES),
            Err(error) => Err(Errno(error.errno)),
        };
        let mut path = self.way_down(self.inode.tree(), self.inode.ino(), Ino(dirid), &allowed)?;
        if path.len() >= LOOKUP_USER_PATH_LEN {
            return Err(Errno(oleo_fs::errno::ENAMETOOLONG));
        }
        name.resize(NAME_MAX + 1, 0);
        path.resize(LOOKUP_USER_PATH_LEN, 0);
        Ok([[dirid, treeid].as_bytes(), &name, &path].concat().into())
    }

    /// Items of any tree in a range of keys, as many as fit.
    fn tree_search(&self) -> Result<Answered, Errno> {
        self.must_be_privileged()?;
        let mut args: SearchKey = take(self.data, 0)?;
        let room = size_of::<VolArgs>() - size_of::<SearchKey>();
        let key = |objectid, item_type: u32, offset| {
            Key::new(objectid, ItemType(u8::try_from(item_type).unwrap_or(u8::MAX)), offset)
        };
        let low = key(args.min_objectid, args.min_type, args.min_offset);
        let high = key(args.max_objectid, args.max_type, args.max_offset);
        let fs = self.server.image().fs();
        if !fs.options().read_only {
            self.server.write_out()?;
            fs.sync()?;
        }
        let engine = fs.engine();
        let _reader = engine.reader();
        let tree = if args.tree_id == 0 { self.inode.tree() } else { TreeId(args.tree_id) };
        let root = engine.root(tree).map_err(FsError::from)?.ok_or(Errno::ENOENT)?;
        let mut cursor = engine.blocks().cursor(&root);
        let mut found = Vec::new();
        let mut count = 0;
        let mut there = cursor.seek(&low).map_err(FsError::from)?;
        while there && count < args.nr_items {
            let (Some((key, item)), Some(leaf)) = (cursor.current(), cursor.path().next_back()) else { break };
            if key > high {
                break;
            }
            let transid = leaf.generation().0;
            if (args.min_transid..=args.max_transid).contains(&transid) {
                if found.len() + size_of::<SearchHeader>() + item.len() > room {
                    break;
                }
                let item_type = u32::from(key.item_type.0);
                let len = item.len() as u32;
                let header = SearchHeader { transid, objectid: key.objectid, offset: key.offset, item_type, len };
                found.extend_from_slice(header.as_bytes());
                found.extend_from_slice(item);
                count += 1;
            }
            there = cursor.next().map_err(FsError::from)?;
        }
        args.nr_items = count;
        found.resize(room, 0);
        Ok([args.as_bytes(), &found].concat().into())
    }
}
