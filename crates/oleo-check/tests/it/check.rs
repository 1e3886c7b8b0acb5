//! The check on whole volumes: sound ones are clean, and each kind of damage is reported as what it is.

mod broken;
mod dumps;
mod files;
mod hostile;
mod kit;
mod rare;
mod restored;
mod sound;
mod tolerated;
