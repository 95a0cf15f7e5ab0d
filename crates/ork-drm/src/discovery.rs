// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Errno, KernelFd, Transport, Version, version};

/// Which family of nodes a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    /// `accel/accelN`.
    Accel,
    /// `dri/renderDN`.
    Render,
    /// `dri/cardN`.
    Card,
}

impl NodeKind {
    const ALL: [Self; 3] = [Self::Accel, Self::Render, Self::Card];

    const fn folder_and_stem(self) -> (&'static str, &'static str) {
        match self {
            Self::Accel => ("accel", "accel"),
            Self::Render => ("dri", "renderD"),
            Self::Card => ("dri", "card"),
        }
    }

    /// The group that usually owns such nodes.
    const fn usual_group(self) -> &'static str {
        match self {
            Self::Accel | Self::Render => "render",
            Self::Card => "video",
        }
    }
}

/// A device node, or a link to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Path as found.
    pub path: PathBuf,
    /// Family; `None` for a path that the user named and that has another form.
    pub kind: Option<NodeKind>,
    /// Where the path leads when it is a symbolic link.
    pub target: Option<PathBuf>,
}

impl Node {
    /// A node by its path.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let kind = path.file_name().and_then(|name| {
            let name = name.to_str()?;
            NodeKind::ALL.into_iter().find(|kind| index(name, *kind).is_some())
        });
        let is_link = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_symlink());
        let target = if is_link { path.canonicalize().ok() } else { None };
        Self { path, kind, target }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.target {
            Some(target) => write!(f, " (link to {})", target.display()),
            None => Ok(()),
        }
    }
}

fn index(name: &str, kind: NodeKind) -> Option<u32> {
    name.strip_prefix(kind.folder_and_stem().1)?.parse().ok()
}

/// All nodes under `dev_root` (normally `/dev`) that could be an NPU: accel, then render, then card nodes, each
/// family by number. An NPU may be any of them; which one it is, only [`probe`] can say.
#[must_use]
pub fn nodes(dev_root: &Path) -> Vec<Node> {
    let mut found = Vec::new();
    for kind in NodeKind::ALL {
        let folder = dev_root.join(kind.folder_and_stem().0);
        // A missing or unreadable folder holds no nodes for us.
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut numbered: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| Some((index(entry.file_name().to_str()?, kind)?, entry.path())))
            .collect();
        numbered.sort();
        found.extend(numbered.into_iter().map(|(_, path)| Node::at(path)));
    }
    found
}

/// Opens nodes: [`RealNodes`], or a test's double.
pub trait OpenNode {
    /// Opens a path for reading and writing.
    ///
    /// # Errors
    /// The errno of `open`.
    fn open(&self, path: &Path) -> Result<Arc<dyn Transport>, Errno>;
}

/// The nodes of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealNodes;

impl OpenNode for RealNodes {
    fn open(&self, path: &Path) -> Result<Arc<dyn Transport>, Errno> {
        Ok(Arc::new(KernelFd::open(path)?))
    }
}

/// Who may open a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Name of the group, if `/etc/group` has it.
    pub group: Option<String>,
    /// Permission bits.
    pub mode: u32,
}

impl Access {
    /// Reads owner, group and mode of a path, following links; `None` when even that is not allowed.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
        Some(Self {
            uid: meta.uid(),
            gid: meta.gid(),
            group: group_name(&groups, meta.gid()),
            mode: meta.mode() & 0o7777,
        })
    }

    /// Whether membership in the group would be enough.
    #[must_use]
    pub fn group_may_open(&self) -> bool {
        self.mode & 0o060 == 0o060
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner uid {}, group ", self.uid)?;
        match &self.group {
            Some(group) => write!(f, "{group}")?,
            None => write!(f, "gid {}", self.gid)?,
        }
        write!(f, ", mode {:04o}", self.mode)
    }
}

fn group_name(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        (number.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

/// Why a node cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Nothing is there.
    #[error("{path} does not exist", path = path.display())]
    Missing {
        /// The path.
        path: PathBuf,
        /// `ENOENT`.
        source: Errno,
    },
    /// The user may not open it.
    #[error("no permission to open {path} ({})", describe(access), path = path.display())]
    Permission {
        /// The path.
        path: PathBuf,
        /// Who may open it; `None` when that could not be read either.
        access: Option<Access>,
        /// `EACCES` or `EPERM`.
        source: Errno,
    },
    /// `open` failed otherwise.
    #[error("cannot open {path}", path = path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The errno of `open`.
        source: Errno,
    },
    /// It opened, but no DRM driver answers.
    #[error("{path} is not a DRM device", path = path.display())]
    NotDrm {
        /// The path.
        path: PathBuf,
        /// The errno of the VERSION ioctl.
        source: Errno,
    },
}

fn describe(access: &Option<Access>) -> String {
    access.as_ref().map_or_else(|| "owner unknown".to_owned(), Access::to_string)
}

impl NodeError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { .. } => {
                "check that the kernel has an NPU driver (rknpu 0.9.x on vendor kernels) and \
                 that a container passes all of /dev/dri"
                    .to_owned()
            }
            Self::Permission { path, access, .. } => permission_hint(path, access.as_ref()),
            Self::Open { source: Errno::EMFILE | Errno::ENFILE, .. } => {
                "too many open files: raise the limit (ulimit -n)".to_owned()
            }
            Self::Open { .. } => "see the kernel log (dmesg)".to_owned(),
            Self::NotDrm { .. } => {
                "name a DRM node such as /dev/dri/renderD129, not a file or another kind of device".to_owned()
            }
        }
    }
}

fn permission_hint(path: &Path, access: Option<&Access>) -> String {
    let usual = Node::at(path).kind.map_or("render", NodeKind::usual_group);
    match access {
        Some(access) if access.mode & 0o006 == 0o006 => {
            "the mode allows everyone, so something else forbids it: a container's device rules, or a security \
             module"
                .to_owned()
        }
        Some(access) if access.group_may_open() && access.gid != 0 => {
            let group = access.group.clone().unwrap_or_else(|| format!("with gid {}", access.gid));
            format!(
                "join the group {group} (sudo usermod -aG {group} \"$USER\") and log in again; in a container pass \
                 --group-add {}",
                access.gid
            )
        }
        _ => format!(
            "only its owner may open it: add a udev rule that gives it to the group {usual} with mode 0660, and \
             join that group"
        ),
    }
}

/// Opens a node and asks which driver it belongs to.
///
/// # Errors
/// [`NodeError`]; another driver than the wanted one is *not* an error here.
pub fn probe(node: &Node, opener: &dyn OpenNode) -> Result<(Arc<dyn Transport>, Version), NodeError> {
    let path = || node.path.clone();
    let transport = opener.open(&node.path).map_err(|source| match source {
        Errno::ENOENT => NodeError::Missing { path: path(), source },
        Errno::EACCES | Errno::EPERM => {
            NodeError::Permission { path: path(), access: Access::of(&node.path), source }
        }
        source => NodeError::Open { path: path(), source },
    })?;
    let version = version(&*transport).map_err(|source| NodeError::NotDrm { path: path(), source })?;
    Ok((transport, version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn dev(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, []).unwrap();
        }
        root
    }

    #[test]
    fn nodes_are_listed_by_family_and_number() {
        let root = dev(&[
            "dri/card10",
            "dri/card2",
            "dri/renderD128",
            "accel/accel0",
            "dri/by-path",
            "dri/cardX",
            "dri/controlD64",
            "rknpu",
        ]);
        let found: Vec<_> = nodes(root.path())
            .into_iter()
            .map(|node| node.path.strip_prefix(root.path()).unwrap().display().to_string())
            .collect();
        assert_eq!(found, ["accel/accel0", "dri/renderD128", "dri/card2", "dri/card10"]);
        assert!(nodes(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn links_are_followed_and_named() {
        let root = dev(&["elsewhere/npu"]);
        fs::create_dir(root.path().join("dri")).unwrap();
        let link = root.path().join("dri/card1");
        symlink(root.path().join("elsewhere/npu"), &link).unwrap();
        let node = &nodes(root.path())[0];
        assert_eq!(node.path, link);
        assert_eq!(node.target, Some(root.path().canonicalize().unwrap().join("elsewhere/npu")));
        // The link's target is opened, and is no DRM device.
        assert!(matches!(probe(node, &RealNodes).unwrap_err(), NodeError::NotDrm { .. }));
    }

    #[test]
    fn a_dangling_link_is_a_missing_node() {
        let root = dev(&[]);
        fs::create_dir(root.path().join("dri")).unwrap();
        symlink("/nonexistent/npu", root.path().join("dri/card1")).unwrap();
        let node = &nodes(root.path())[0];
        assert!(matches!(probe(node, &RealNodes).unwrap_err(), NodeError::Missing { .. }));
    }

    /// Runs `f` without root's right to open everything; a no-op for other users. Only the calling thread is
    /// changed, so it is a thread of its own.
    fn as_ordinary_user<R: Send>(f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: changes the file-system identity of this thread only, which ends below.
                    unsafe { libc::setfsuid(65534) };
                    f()
                })
                .join()
                .unwrap()
        })
    }

    #[test]
    fn a_closed_node_names_its_group() {
        let root = dev(&["dri/renderD129"]);
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = root.path().join("dri/renderD129");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let node = Node::at(&path);
        let error = as_ordinary_user(|| probe(&node, &RealNodes).unwrap_err());
        let NodeError::Permission { access: Some(access), source, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*source, access.mode), (Errno::EACCES, 0));
        let expected = access.group.clone().unwrap_or_else(|| format!("gid {}", access.gid));
        assert!(error.to_string().contains(&format!("group {expected}, mode 0000")), "{error}");
        assert!(error.hint().contains("udev rule that gives it to the group render"), "{}", error.hint());
    }

    fn refused(path: &str, group: &str, gid: u32, mode: u32) -> NodeError {
        let access = Access { uid: 0, gid, group: Some(group.to_owned()), mode };
        NodeError::Permission { path: path.into(), access: Some(access), source: Errno::EACCES }
    }

    #[test]
    fn hints_follow_group_and_mode() {
        let hint = refused("/dev/dri/renderD129", "render", 104, 0o660).hint();
        assert!(hint.contains("usermod -aG render") && hint.contains("--group-add 104"), "{hint}");
        assert!(refused("/dev/dri/card1", "video", 44, 0o660).hint().contains("usermod -aG video"));
        assert!(refused("/dev/dri/card1", "root", 0, 0o600).hint().contains("to the group video"));
        assert!(refused("/dev/accel/accel0", "root", 0, 0o600).hint().contains("to the group render"));
        assert!(refused("/dev/dri/card1", "video", 44, 0o666).hint().contains("container"));
    }

    #[test]
    fn group_names_come_from_the_group_file() {
        let text = "root:x:0:\nvideo:x:44:anna,ben\nrender:x:104:\nbroken\n";
        assert_eq!(group_name(text, 104).as_deref(), Some("render"));
        assert_eq!(group_name(text, 44).as_deref(), Some("video"));
        assert_eq!(group_name(text, 4), None);
    }
}
