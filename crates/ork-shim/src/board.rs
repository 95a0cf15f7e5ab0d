// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process emulates or records: made when a program first looks where an NPU could be.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::fs::{File as StdFile, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ork_drm::Errno;
use ork_emu::{Board, Soc};
use ork_trace::{Header, Recorder, Source};

use crate::chip::{self, Chip};
use crate::device::Numbers;
use crate::fds::FileId;
use crate::path::{self, Place};
use crate::settings::{Driver, Emulation, ReportLine, Settings, VARIABLE};
use crate::tree::{self, Node, Shown};
use crate::{guard, raw};

/// What is emulated or recorded, once it is known.
static WORLD: OnceLock<World> = OnceLock::new();

/// State that lasts as long as the process.
pub(crate) struct World {
    settings: Settings,
    /// The emulated machine; `None` when the program sees the real one.
    pub(crate) machine: Option<Machine>,
    /// The recorder, and the process that it belongs to.
    recorder: OnceLock<Option<(i32, Arc<Recorder>)>>,
}

/// An emulated machine.
pub(crate) struct Machine {
    emulation: Emulation,
    root: PathBuf,
    /// Device nodes by the identity of the files that stand for them.
    nodes: HashMap<FileId, &'static Node>,
    /// Device number of the file system that holds the folder.
    device: u64,
    /// The board of this process, made on first use.
    board: Mutex<Option<Board>>,
    /// The folder is ours to remove, if we are this process.
    owner: Option<i32>,
}

/// The world, made on first use. The caller is inside.
pub(crate) fn world() -> &'static World {
    WORLD.get_or_init(World::new)
}

/// The world, if anything has asked for it before.
pub(crate) fn known() -> Option<&'static World> {
    WORLD.get()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a preloaded library has no command line: this is its one setting"
)]
fn settings() -> Result<Settings, String> {
    match std::env::var(VARIABLE) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{VARIABLE}: {error}")),
        Err(std::env::VarError::NotPresent) => Ok(Settings::default()),
        Err(error) => Err(format!("{VARIABLE}: {error}")),
    }
}

impl World {
    fn new() -> Self {
        guard::watch_forks();
        let settings = settings().unwrap_or_else(|trouble| {
            complain(&trouble);
            // Neither emulates nor records: the program sees no NPU that was not meant.
            Settings { emulate: None, ..Settings::default() }
        });
        let machine = settings.emulate.clone().and_then(|emulation| {
            Machine::new(emulation, settings.root.clone())
                .map_err(|error| complain(&format!("no folder for the board's files: {error}")))
                .ok()
        });
        // SAFETY: the function lives as long as this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Self { settings, machine, recorder: OnceLock::new() }
    }

    /// Whether devices are recorded.
    pub(crate) fn records(&self) -> bool {
        self.settings.capture.is_some()
    }

    /// The recorder; the first NPU that is opened starts it.
    pub(crate) fn recorder(&self, driver: &str, version: [i32; 3]) -> Option<Arc<Recorder>> {
        let start = || {
            let path = self.settings.capture.as_deref()?;
            self.start_recorder(path, driver, version)
                .map_err(|error| self.trouble(&format!("cannot record to {}: {error}", path.display())))
                .ok()
                .map(|recorder| (raw::process(), recorder))
        };
        self.recorder.get_or_init(start);
        self.running_recorder()
    }

    fn start_recorder(
        &self,
        path: &Path,
        driver: &str,
        version: [i32; 3],
    ) -> Result<Arc<Recorder>, ork_trace::TraceError> {
        let header = Header {
            source: if self.machine.is_some() { Source::Emulated } else { Source::Device },
            driver: driver.to_owned(),
            driver_version: version,
            soc: self.machine.as_ref().map_or_else(host_soc, |machine| machine.soc_name().to_owned()),
            program: self.settings.program.clone(),
            writer: concat!("ork ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let out = create(path)?;
        let memory = |address: u64, out: &mut [u8]| raw::copy_in(address as usize, out);
        Ok(Arc::new(Recorder::new(Box::new(BufWriter::new(out)), &header, memory)?))
    }

    /// The recorder, if this process has started one; its children's calls are not recorded.
    pub(crate) fn running_recorder(&self) -> Option<Arc<Recorder>> {
        let (process, recorder) = self.recorder.get()?.as_ref()?;
        (*process == raw::process()).then(|| Arc::clone(recorder))
    }

    /// Writes new findings of the board to the report.
    pub(crate) fn report_findings(&self) {
        if self.settings.report.is_none() {
            return;
        }
        let Some(board) = self.machine.as_ref().and_then(Machine::existing_board) else { return };
        for finding in board.take_findings() {
            self.report(&ReportLine::Finding { process: raw::process(), text: finding.to_string() });
        }
    }

    /// Writes a line to the report.
    fn report(&self, line: &ReportLine) {
        let Some(path) = &self.settings.report else { return };
        let written = OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            // One write: lines of several processes do not mix.
            file.write_all(&text)
        });
        if let Err(error) = written {
            complain(&format!("report {}: {error}", path.display()));
        }
    }

    /// Something is wrong in the library: into the report, or to stderr.
    pub(crate) fn trouble(&self, text: &str) {
        match self.settings.report {
            Some(_) => self.report(&ReportLine::Trouble { process: raw::process(), text: text.to_owned() }),
            None => complain(text),
        }
    }

    fn end(&self) {
        self.report_findings();
        if let Some(Err(error)) = self.running_recorder().map(|recorder| recorder.finish()) {
            self.trouble(&format!("the trace is not complete: {error}"));
        }
        if let Some(machine) = &self.machine {
            if let Some(board) = machine.existing_board() {
                let line = ReportLine::End { process: raw::process(), modelled_ns: board.clock_ns() };
                self.report(&line);
            }
            if machine.owner == Some(raw::process()) {
                // At the end of the process nobody could do anything about a failure.
                let _ = std::fs::remove_dir_all(&machine.root);
            }
        }
    }
}

/// The file for a trace. A second process that uses an NPU gets a file of its own.
fn create(path: &Path) -> std::io::Result<StdFile> {
    let new = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    match new(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}", raw::process()));
            new(Path::new(&name))
        }
        result => result,
    }
}

/// Chip of the machine itself.
fn host_soc() -> String {
    let compatible = std::fs::read("/proc/device-tree/compatible").unwrap_or_default();
    let names = compatible.split(|byte| *byte == 0);
    names
        .filter_map(|name| std::str::from_utf8(name).ok()?.strip_prefix("rockchip,"))
        .next_back()
        .unwrap_or_default()
        .to_owned()
}

impl Machine {
    fn new(emulation: Emulation, root: Option<PathBuf>) -> std::io::Result<Self> {
        let shown = match emulation.driver {
            Driver::Rknpu => Shown::Vendor(emulation.options.driver_version),
            Driver::Rocket => Shown::Mainline,
        };
        let chip = chip_of(&emulation);
        let (root, owner) = match root {
            Some(root) => (root, None),
            None => (tempfile::Builder::new().prefix("ork-board-").tempdir()?.keep(), Some(raw::process())),
        };
        let root = root.canonicalize()?;
        // Of several processes with one folder the first makes the files.
        if !root.join("dev").exists() {
            let made = root.join(format!("new.{}", raw::process()));
            tree::build(&made, chip, &shown)?;
            adopt(&made, &root)?;
        }
        let mut nodes = HashMap::new();
        for node in tree::nodes(&shown) {
            let meta = std::fs::metadata(root.join(node.path.trim_start_matches('/')))?;
            nodes.insert((meta.dev(), meta.ino()), node);
        }
        let device = std::fs::metadata(&root)?.dev();
        Ok(Self { emulation, root, nodes, device, board: Mutex::default(), owner })
    }

    fn soc_name(&self) -> &'static str {
        let compatible = chip_of(&self.emulation).compatible;
        compatible.trim_end_matches('\0').rsplit(',').next().unwrap_or_default()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Board>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The board of this process, made on first use.
    pub(crate) fn board(&self) -> Board {
        let make = || Board::with_fd_table(&self.emulation.options, Arc::new(Numbers));
        self.slot().get_or_insert_with(make).clone()
    }

    fn existing_board(&self) -> Option<Board> {
        self.slot().clone()
    }

    /// Leaves the parent's board alone: a child has none of the threads that serve it, and some of its locks may be
    /// held by them for ever.
    fn abandon_board(&self) {
        std::mem::forget(self.slot().take());
    }

    /// The node that a file stands for.
    pub(crate) fn node(&self, stat: &libc::stat) -> Option<&'static Node> {
        if stat.st_dev != self.device {
            return None;
        }
        self.nodes.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    /// Whether a folder entry stands for a node.
    pub(crate) fn is_node_entry(&self, inode: u64, name: &CStr) -> bool {
        self.nodes.iter().any(|((_, own), node)| {
            *own == inode && node.path.rsplit('/').next().is_some_and(|own| own.as_bytes() == name.to_bytes())
        })
    }

    /// Where a path of the board really is; `None` for a path of the host.
    pub(crate) fn place(&self, folder: c_int, path: &CStr) -> Option<CString> {
        let bytes = path.to_bytes();
        if bytes.first() == Some(&b'/') {
            return match path::place(bytes) {
                Place::Host => None,
                Place::Board(tidy) => Some(self.below_root(&tidy, bytes.last() == Some(&b'/'))),
                Place::BackToHost(tidy) => CString::new(tidy).ok(),
            };
        }
        if folder == libc::AT_FDCWD || bytes.is_empty() {
            return None;
        }
        // Relative to a folder that may be one of the board's.
        let folder = std::fs::read_link(format!("/proc/self/fd/{folder}")).ok()?;
        let inner = folder.as_os_str().as_bytes().strip_prefix(self.root.as_os_str().as_bytes())?;
        let mut whole = inner.to_vec();
        whole.push(b'/');
        whole.extend_from_slice(bytes);
        Some(self.below_root(&path::tidy(&whole), false))
    }

    fn below_root(&self, tidy: &[u8], slash: bool) -> CString {
        let mut out = self.root.as_os_str().as_bytes().to_vec();
        out.extend_from_slice(tidy);
        if slash {
            out.push(b'/');
        }
        CString::new(out).unwrap_or_default()
    }

    /// The path that a program knows for a path in the folder.
    pub(crate) fn shown<'a>(&self, real: &'a [u8]) -> Option<&'a [u8]> {
        let inner = real.strip_prefix(self.root.as_os_str().as_bytes())?;
        inner.starts_with(b"/").then_some(inner)
    }

    /// Opens the device behind a node.
    pub(crate) fn node_place(&self, node: &Node) -> CString {
        self.below_root(node.path.as_bytes(), false)
    }
}

/// Moves a finished set of files to where they are expected, unless another process was faster.
fn adopt(made: &Path, root: &Path) -> std::io::Result<()> {
    for top in ["sys", "proc", "dev"] {
        if std::fs::rename(made.join(top), root.join(top)).is_err() && !root.join(top).exists() {
            return Err(std::io::Error::last_os_error());
        }
    }
    std::fs::remove_dir_all(made)
}

fn chip_of(emulation: &Emulation) -> &'static Chip {
    match emulation.options.soc {
        Soc::Rk3588 => &chip::RK3588,
        Soc::Rk3576 => &chip::RK3576,
        Soc::Rk3568 => &chip::RK3568,
    }
}

/// Says on stderr what is wrong: the library's last resort.
pub(crate) fn complain(text: &str) {
    let line = format!("ork: {text}\n");
    // SAFETY: writes the line's bytes; a failure has nobody to go to.
    unsafe { raw::syscall(libc::SYS_write, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]) };
}

extern "C" fn at_exit() {
    let _inside = guard::enter();
    if guard::owns_state()
        && let Some(world) = known()
    {
        // Nothing may leave through here.
        let _ = std::panic::catch_unwind(|| world.end());
    }
}

/// A child has none of the threads of the parent's board.
pub(crate) fn after_fork_in_child() {
    if let Some(machine) = known().and_then(|world| world.machine.as_ref()) {
        machine.abandon_board();
    }
}

/// `EFAULT` and friends for a path argument.
pub(crate) fn c_string<'a>(path: *const std::ffi::c_char) -> Result<&'a CStr, Errno> {
    if path.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the program gives a terminated string, as the function that it calls demands.
    Ok(unsafe { CStr::from_ptr(path) })
}
