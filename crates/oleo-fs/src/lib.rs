//! Files and names: inodes, directories, extents, xattrs, subvolumes.
